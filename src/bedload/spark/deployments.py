"""The operators of a cluster: shipped to the workers, planned into Spark, and their state kept at hand.

Invariant: an operator is applied again only with the state variables that the workers have in memory, unless its state
is given up.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from bedload.checkpoint.records import OperatorSchema
from bedload.control.coordinator import Coordinator
from bedload.core.errors import SchemaChanged, StateTypeError, UnknownOperator
from bedload.core.ids import DeploymentId, OperatorName, WorkerId
from bedload.keys import RoutingTable
from bedload.spark.application import Application
from bedload.spark.attachment import Attachment
from bedload.spark.bootstrap import deploy_with_initial_state
from bedload.spark.driver import Driver
from bedload.spark.state_schema import check_stored
from bedload.spark.state_view import Decoder, OperatorState
from bedload.transport import Credentials


class Deployments:
    """What was applied on a cluster."""

    def __init__(self, attached: Attachment, driver: Driver, credentials: Credentials) -> None:
        self._attached = attached
        self._driver = driver
        self._credentials = credentials
        self.states: dict[OperatorName, OperatorState] = {}
        """The live state of each operator."""

    def launch(self, applied: Application, *, fresh: bool) -> DataFrame:
        """Ship an application, and plan it."""
        number = self._deploy(applied, fresh=fresh)
        self._remember(applied)
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
            self._check_same_state(name, applied.decoder, wanted)
        payload = applied.payload()
        lineage = None
        if keeper is not None and wanted is not None:
            if initial is not None:
                return deploy_with_initial_state(
                    self._attached.spark, self._driver, keeper, name, initial, wanted, payload, fresh=fresh
                )
            if fresh or name not in self._driver.call(lambda c: c.operators):
                lineage = keeper.lineage(name, wanted, fresh=fresh)
        return self._driver.deploy(name, groups, payload, fresh=fresh, lineage=lineage)

    def _check_same_state(self, name: OperatorName, decoder: Decoder, wanted: OperatorSchema | None) -> None:
        """Refuse other state than the workers have in memory."""
        known = self.states.get(name)
        if known is None or known.decoder.variables == decoder.variables:
            return
        before, after = known.decoder.variables, decoder.variables
        differ = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
        lineage = self._driver.call(lambda c: c.operator(name).lineage)
        if lineage is not None and wanted is not None:
            check_stored(name, lineage.schema, wanted)
            raise SchemaChanged(
                f"operator {name} was applied before with other state: {', '.join(differ)} differ. The stored "
                f"state can become what it is now, but the workers of this cluster have it in memory as it was: "
                f"stop the cluster, and attach again with the same checkpoint",
                operator=name,
            )
        raise StateTypeError(
            f"operator {name} was applied before with other state: {', '.join(differ)} differ. Keep the state "
            f"variables as they were, give this application another name (name=...), or give the state up with "
            f"fresh=True",
            operator=name,
        )

    def _remember(self, applied: Application) -> None:
        name = applied.name

        def where() -> tuple[RoutingTable, dict[WorkerId, str]]:
            def look(coordinator: Coordinator) -> tuple[RoutingTable, dict[WorkerId, str]]:
                if coordinator.error is not None:
                    raise coordinator.error
                return coordinator.operator(name).routing, coordinator.workers

            return self._driver.call(look)

        self.states[name] = OperatorState(name, applied.decoder, applied.keyed.types, where, self._credentials)
