"""The S3 protocol, against a real server process on the loopback."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from tests.checkpoint_states import ME, collect_garbage
from tests.patience import PATIENCE

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.fsspec_storage import FsspecStorage, Retries
from bedload.checkpoint.records import Manifest, TurnRecord
from bedload.checkpoint.storage import open_storage
from bedload.core.errors import CheckpointForeign, Fenced, StoreError
from bedload.core.ids import Epoch, OperatorName, QueryId, WorkerId, make_turn

pytestmark = pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")

TRIP = OperatorName("Trip")
_NUMBERS = itertools.count()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"http://127.0.0.1:{(port := _free_port())}"
    log = tmp_path_factory.mktemp("s3") / "server.log"
    command = [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        for _ in range(6000):
            try:
                urllib.request.urlopen(f"{url}/moto-api/", timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None, log.read_text()
                time.sleep(0.1)
        else:
            pytest.fail(f"the server did not come up: {log.read_text()}")
        yield url
    finally:
        os.kill(server.pid, signal.SIGTERM)
        server.wait(PATIENCE)


@pytest.fixture
def options(endpoint: str) -> dict[str, Any]:
    return {
        "key": "testing",
        "secret": "testing",
        "endpoint_url": endpoint,
        "client_kwargs": {"region_name": "us-east-1"},
    }


@pytest.fixture
def client(endpoint: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        region_name="us-east-1",
    )


@pytest.fixture
def url(client: Any) -> str:
    bucket = f"bucket-{next(_NUMBERS)}"
    client.create_bucket(Bucket=bucket)
    return f"s3://{bucket}/some/checkpoint"


def test_files_are_written_read_listed_and_deleted(url: str, options: dict[str, Any]) -> None:
    storage, other = open_storage(url, options), open_storage(url, options)
    assert storage.list("") == []
    storage.write("f/b", [b"on", b"e"])
    storage.write("f/sub/x", b"12345")
    storage.write("f/a%20b", b"")
    assert storage.read("f/b") == b"one"
    assert other.list("f") == ["a%20b", "b", "sub"]
    assert other.sizes("f") == {"a%20b": 0, "b": 3}
    assert other.size("f/sub/x") == 5
    storage.write("f/c", b"new")
    assert other.list("f") == ["a%20b", "b", "c", "sub"], "a listing is never an old one"
    assert other.exists("f/c")
    assert not other.exists("f/sub"), "a folder is no file"
    other.delete(["f/b", "f/c", "f/nothing"])
    assert storage.list("f") == ["a%20b", "sub"]
    assert not storage.exists("f/c")
    with pytest.raises(FileNotFoundError):
        storage.read("f/c")
    with pytest.raises(FileNotFoundError):
        storage.size("f/c")


def test_an_object_that_stands_for_a_folder_is_not_in_it(url: str, options: dict[str, Any], client: Any) -> None:
    storage = open_storage(url, options)
    storage.write("f/a", b"x")
    bucket, _, key = url.removeprefix("s3://").partition("/")
    client.put_object(Bucket=bucket, Key=f"{key}/f/", Body=b"")
    assert storage.list("f") == ["a"]
    assert storage.sizes("f") == {"a": 1}


def test_many_files_are_listed_and_deleted(url: str, options: dict[str, Any]) -> None:
    storage = open_storage(url, options)
    names = [f"f/{number:03d}" for number in range(120)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: storage.write(name, b"x"), names))
    assert len(storage.list("f")) == 120
    storage.delete(names)
    assert storage.list("f") == []


def test_the_server_itself_refuses_a_second_create(
    url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(url, options)
    assert storage.create("f/a", b"mine")
    # Without the look beforehand: it is the condition on the request that counts.
    monkeypatch.setattr(FsspecStorage, "_exists", lambda *_: False)
    assert not storage.create("f/a", b"yours")
    assert storage.create("f/a", b"mine"), "its own content: an answer that was lost"
    assert storage.read("f/a") == b"mine"


def test_of_many_attachments_at_once_each_gets_a_generation_of_its_own(url: str, options: dict[str, Any]) -> None:
    barrier = threading.Barrier(4)
    checkpoints = [Checkpoint.open(open_storage(url, options), ME) for _ in range(4)]

    def claim(checkpoint: Checkpoint) -> int:
        barrier.wait()
        return checkpoint.claim()

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(claim, checkpoints)) == [1, 2, 3, 4]
    assert len({checkpoint.format.id for checkpoint in checkpoints}) == 1
    checkpoints.sort(key=lambda checkpoint: checkpoint.generation or 0)
    checkpoints[3].check_fence()
    with pytest.raises(Fenced, match=r"s3://.* taken over by generation 2"):
        checkpoints[0].check_fence()


def test_a_history_is_loaded_exported_and_collected(url: str, options: dict[str, Any]) -> None:
    storage = open_storage(url, options)
    checkpoint = Checkpoint.open(storage, ME)
    generation = checkpoint.claim()
    parent = None
    for epoch in range(12):
        record = TurnRecord(
            turn=make_turn(generation, epoch + 1),
            parent=parent,
            generation=generation,
            query=QueryId("a"),
            run="r",
            epoch=Epoch(epoch),
            location="",
            schema=1,
            owners=((0, 8),),
            workers=(WorkerId(0),),
            committed={"a": Epoch(epoch - 1)} if epoch else {},
        )
        checkpoint.write_turn(TRIP, record)
        storage.write(paths.delta(TRIP, record.turn, WorkerId(0)), b"delta")
        parent = record.turn
    history = checkpoint.load_history(TRIP)
    assert history.head == parent
    assert len(history.restore_plan(parent).deltas) == 12
    assert history.delta_bytes(parent or make_turn(generation, 0)) == 5
    copy = open_storage(f"{url}-copy", options)
    assert checkpoint.export(copy) == {TRIP: parent}
    assert Checkpoint.open(copy).load_history(TRIP).chain() == history.chain()
    assert Checkpoint.open(copy, ME).claim() == 2
    snapshot = Manifest(
        turn=history.chain()[3],
        schema=1,
        query=QueryId("a"),
        epoch=Epoch(8),
        parts=(),
        bytes=0,
        rows=0,
        committed={"a": Epoch(8)},
    )
    checkpoint.write_manifest(TRIP, snapshot)
    history.snapshot(snapshot)
    collect_garbage(checkpoint, TRIP, history, 2)
    assert len(storage.list(paths.turns(TRIP))) == len(storage.list(paths.deltas(TRIP))) == 3
    assert checkpoint.load_history(TRIP).retained() == history.retained()


def test_a_bucket_with_other_files_is_not_taken(url: str, options: dict[str, Any]) -> None:
    open_storage(url, options).write("photo.jpg", b"x")
    with pytest.raises(CheckpointForeign, match=r"photo\.jpg"):
        Checkpoint.open(open_storage(url, options), ME)


def test_a_bucket_that_is_not_there_is_a_clear_error(options: dict[str, Any]) -> None:
    storage = open_storage("s3://no-such-bucket-here/x", options)
    with pytest.raises(StoreError, match=r"s3://no-such-bucket-here/x/a.*bucket.*spelled right"):
        storage.write("a", b"x")
    with pytest.raises(StoreError, match=r"s3://no-such-bucket-here/x"):
        Checkpoint.open(storage, ME)


def test_a_server_that_is_not_there_is_a_store_error_after_some_tries(options: dict[str, Any]) -> None:
    waits: list[float] = []
    gone = {
        **options,
        "endpoint_url": f"http://127.0.0.1:{_free_port()}",
        "config_kwargs": {"connect_timeout": 1, "retries": {"max_attempts": 1}},
    }
    storage = FsspecStorage("s3://bucket/x", gone, Retries(tries=2, sleep=waits.append))
    with pytest.raises(StoreError, match=r"cannot write s3://bucket/x/a.*store is up"):
        storage.write("a", b"x")
    assert len(waits) == 1
