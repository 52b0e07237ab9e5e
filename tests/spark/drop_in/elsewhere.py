"""Behaviours that have tests of their own, for the conformance table."""

from __future__ import annotations

from dataclasses import dataclass

from tests.spark.drop_in.cases import CALL, ERRORS, LIFE, MEANS, RESTART


@dataclass(frozen=True)
class Elsewhere:
    """A line of the table, and the test that shows it."""

    section: str
    what: str
    file: str
    test: str
    why: str = ""


HERE = "tests/spark/drop_in/"
ELSEWHERE = (
    Elsewhere(
        CALL,
        "code that is not changed at all",
        "tests/spark/test_drop_in_spark.py",
        "test_a_session_without_a_cluster_gets_one_and_patched_code_runs_on_it",
        "`bl.patch_pyspark()` has `GroupedData.transformWithState` and `transformWithStateInPandas` run on Bedload",
    ),
    Elsewhere(
        LIFE,
        "timers by processing time fire without new rows",
        f"{HERE}test_without_rows.py",
        "test_timers_fire_without_rows",
        "there is a batch when a timer is due; Spark runs one after the other for ever",
    ),
    Elsewhere(
        ERRORS,
        "a `foreachBatch` that leaves partitions unread: `STATE_STORE_COMMIT_VALIDATION_FAILED`",
        "tests/spark/test_epochs.py",
        "test_a_consumer_that_stops_early_is_named_at_the_next_epoch",
        "the next batch is refused: `EpochIncomplete`",
    ),
    Elsewhere(
        RESTART,
        "two queries of one class have a state each, by their checkpoint locations",
        f"{HERE}test_queries.py",
        "test_queries_of_one_class_have_states_of_their_own",
        "so they have while both run; one that follows another one takes a `name=`: without, it is refused as long as "
        "the checkpoint of the other one is there, since the state under the name of the class is that one's",
    ),
    Elsewhere(
        RESTART,
        "the state of a query is read from its checkpoint: `statestore` with `stateVarName` and `readRegisteredTimers`",
        f"{HERE}test_final_state.py",
        "test_the_state_at_the_end_is_the_same",
        'it is read live, `cluster.state(name).get(key)`, and with `format("bedload")`: the same values, ends of TTLs '
        "and timers",
    ),
    Elsewhere(
        RESTART,
        "state of a query goes on where it ended",
        "tests/spark/test_drop_in_spark.py",
        "test_a_query_of_spark_goes_on_here_as_if_nothing_had_happened",
        "Bedload takes over the state of a query of Spark's",
    ),
    Elsewhere(
        RESTART,
        "random programs, with restarts and replays, in all modes and both forms",
        f"{HERE}test_random_processors.py",
        "test_random_processors",
    ),
    Elsewhere(
        MEANS,
        "`hash` of a text is the same in all processes (`PYTHONHASHSEED` is 0 unless it is set)",
        f"{HERE}test_means_of_spark.py",
        "test_what_else_of_spark_a_processor_uses",
    ),
    Elsewhere(
        MEANS,
        "accumulators: what a processor adds comes to the driver",
        f"{HERE}test_means_of_spark.py",
        "test_what_else_of_spark_a_processor_uses",
        "no: it stays in the worker that adds it, as the processor runs in no task, whose end would bring it; yield a "
        "row, or keep the sum in state and read it live",
    ),
    Elsewhere(
        MEANS,
        "`TaskContext.get()` is that of the task",
        f"{HERE}test_means_of_spark.py",
        "test_what_else_of_spark_a_processor_uses",
        "no: it is `None`: the processor runs in a worker, and not in a task",
    ),
    Elsewhere(
        MEANS,
        "`query.lastProgress` has the operator under `stateOperators`",
        f"{HERE}test_means_of_spark.py",
        "test_what_else_of_spark_a_processor_uses",
        "no: to Spark it is no stateful operator; rows, late rows, keys and times of each epoch are in "
        "`cluster.epochs()`",
    ),
)
