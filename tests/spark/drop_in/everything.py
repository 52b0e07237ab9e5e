"""The whole list of behaviours: to import it fills the registries."""

from tests.spark.drop_in import (  # noqa: F401  each of them adds its cases
    cases_call,
    cases_errors,
    cases_life,
    cases_output,
    cases_restarts,
    cases_rows,
    cases_state,
    cases_timers,
    cases_ttl,
    cases_values,
)
from tests.spark.drop_in.cases import CALLS, QUERIES
from tests.spark.drop_in.elsewhere import ELSEWHERE
from tests.spark.drop_in.small import SMALL

__all__ = ["CALLS", "ELSEWHERE", "QUERIES", "SMALL"]
