"""The operators of a cluster: shipped to the workers, planned into Spark, and their state kept at hand.

Invariant: an operator is applied again only with the key, the key groups and the state variables that the workers have
in memory, unless its state is given up. What differs is refused before anything is shipped or written. Threads
may apply operators at the same time; one is done after the other.
"""

from __future__ import annotations

import threading

from pyspark.sql import DataFrame

from bedload.checkpoint.evolution import check_stored, other_key, same_key
from bedload.checkpoint.heritage import Terms, check_parameters
from bedload.checkpoint.records import OperatorSchema
from bedload.control.coordinator import Coordinator
from bedload.control.refusals import groups_changed
from bedload.core.errors import DefinitionError, SchemaChanged, StateTypeError, UnknownOperator
from bedload.core.ids import DeploymentId, OperatorName
from bedload.spark.application import Application, Shape
from bedload.spark.attachment import Attachment
from bedload.spark.bootstrap import deploy_with_initial_state
from bedload.spark.driver import Driver
from bedload.spark.state_view import OperatorState, Whereabouts
from bedload.state.kinds import Store
from bedload.transport import Credentials


class Deployments:
    """What was applied on a cluster."""

    def __init__(self, attached: Attachment, driver: Driver, credentials: Credentials) -> None:
        self._attached = attached
        self._driver = driver
        self._credentials = credentials
        self.states: dict[OperatorName, OperatorState] = {}
        """The live state of each operator."""
        self._shapes: dict[OperatorName, tuple[Shape, Terms]] = {}
        """What each operator was shipped with, and on which terms, whether or not the workers could load it."""
        self._unnamed: str | None = None
        """What was applied without a name of its own, in words."""
        self._one_by_one = threading.Lock()

    def launch(self, applied: Application, *, fresh: bool, unnamed: str | None = None) -> DataFrame:
        """Ship an application, and plan it; ``unnamed``: what it is, if the user gave it no name."""
        with self._one_by_one:
            return self._launch(applied, fresh, unnamed)

    def _launch(self, applied: Application, fresh: bool, unnamed: str | None) -> DataFrame:
        if unnamed is not None and not fresh and self._unnamed not in (None, unnamed):
            raise DefinitionError(
                f"{self._unnamed} has no name of its own on this cluster, so {unnamed} needs one: "
                f"cluster.aggregate(..., name=...). State is kept by name"
            )
        before = self._driver.call(lambda c: c.latest(applied.name))
        try:
            number = self._deploy(applied, fresh=fresh)
        except BaseException:
            # The workers could not load it, or the user did not wait for them; yet if it was shipped, it is what the
            # coordinator knows the operator by from now on.
            if self._driver.call(lambda c: c.latest(applied.name)) != before:
                self._shapes[applied.name] = applied.shape, applied.terms
            raise
        self._remember(applied)
        self._record_terms(applied, number)
        self._unnamed = unnamed or self._unnamed
        return applied.plan(number, self._driver.address, self._credentials)

    def state(self, name: OperatorName) -> OperatorState:
        """The live state of an operator."""
        found = self.states.get(name)
        if found is None:
            known = ", ".join(sorted(self.states)) or "none"
            raise UnknownOperator(f"no operator {name!r} was applied on this cluster; there are: {known}")
        return found

    def close(self) -> None:
        """Ask no worker any more."""
        for state in self.states.values():
            state.close()

    # --- steps ---

    def _deploy(self, applied: Application, *, fresh: bool) -> DeploymentId:
        name, groups, initial = applied.name, applied.keyed.groups, applied.initial
        keeper = self._attached.keeper if initial is None else self._attached.durable("initial_state")
        wanted = None if keeper is None else applied.schema()
        if not fresh:
            self._check_same_state(name, applied, wanted)
        payload = applied.payload(self._attached.epoch_bytes)
        lineage = None
        if keeper is not None and wanted is not None:
            if initial is not None:
                return deploy_with_initial_state(
                    self._attached.spark, self._driver, keeper, name, initial, wanted, payload, fresh=fresh
                )
            if fresh or name not in self._driver.call(lambda c: c.operators):
                lineage = keeper.lineage(name, wanted, applied.terms, fresh=fresh)
        number = self._driver.deploy(name, groups, payload, fresh=fresh, lineage=lineage)
        if applied.per_query:
            self._driver.call(lambda c: c.each_query_anew(name))
        return number

    def _check_same_state(self, name: OperatorName, applied: Application, wanted: OperatorSchema | None) -> None:
        """Refuse other state than the workers have in memory."""
        if name not in self._shapes:
            return
        (known, terms), shape = self._shapes[name], applied.shape
        check_parameters(name, terms.parameters, applied.terms)
        found = _differences(known, shape)
        if not found:
            return
        lineage = self._driver.call(lambda c: c.operator(name).lineage)
        if lineage is not None and wanted is not None:
            check_stored(name, lineage.schema, wanted)
            raise SchemaChanged(
                f"operator {name} was applied before with other state: {'; '.join(found)}. The stored state can become "
                f"what it is now, but the workers of this cluster have it in memory as it was: stop the cluster, and "
                f"attach again with the same checkpoint",
                operator=name,
            )
        if known.groups != shape.groups and len(found) == 1:
            raise groups_changed(name, known.groups, shape.groups)
        raise StateTypeError(
            f"operator {name} was applied before with other state: {'; '.join(found)}. Keep it as it was, give this "
            f"application another name (name=...), or give the state up with fresh=True",
            operator=name,
        )

    def _remember(self, applied: Application) -> None:
        name = applied.name
        self._shapes[name] = applied.shape, applied.terms

        def where() -> Whereabouts:
            def look(coordinator: Coordinator) -> Whereabouts:
                if coordinator.error is not None:
                    raise coordinator.error
                return Whereabouts.of(coordinator, name)

            return self._driver.call(look)

        keyed = applied.keyed
        self.states[name] = OperatorState(name, applied.decoder, keyed.types, where, self._credentials, keyed.names)

    def _record_terms(self, applied: Application, number: DeploymentId) -> None:
        """Have the turns of a deployment say with which parameters and store they ran. None begins without a plan."""

        def record(coordinator: Coordinator) -> None:
            lineage = coordinator.operator(applied.name).lineage
            if lineage is not None and applied.terms.parameters:
                lineage.parameters[number] = applied.terms.parameters
            if lineage is not None and elsewhere:
                lineage.stores[number] = applied.shape.store

        elsewhere = applied.deployment.store is not Store.MEMORY
        if elsewhere or applied.terms.parameters:
            self._driver.call(record)


def _differences(before: Shape, after: Shape) -> list[str]:
    """What keeps code of one shape from going on with state of another."""
    found = []
    if not same_key(before.keys, after.keys):
        found.append(other_key(before.keys, after.keys))
    if before.groups != after.groups:
        found.append(f"key_groups: {before.groups} → {after.groups}")
    if before.layout != after.layout:
        found.append(f"layout: {before.layout} → {after.layout}")
    if before.store != after.store:
        found.append(f"store: {before.store} → {after.store}")
    names = before.variables.keys() | after.variables.keys()
    differ = sorted(n for n in names if before.variables.get(n) != after.variables.get(n))
    if differ and before.layout == after.layout:
        found.append(f"{', '.join(differ)} differ")
    return found
