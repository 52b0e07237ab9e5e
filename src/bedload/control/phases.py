"""The phases of a change of the cluster and of a transfer, drawn. A turn's are in :mod:`~bedload.control.epochs`."""

from __future__ import annotations

import enum


class ChangePhase(enum.Enum):
    """Where a change of the cluster is.

    ::

        QUEUED ──▶ STARTING new workers ──▶ WEIGHING what there is ──▶ MOVING every operator; workers leave ──▶ OVER
             └───▶ HOLDING epochs (stop_restart) ──▶ RESTARTING all workers ──────────────────────────────────────▲
    """

    QUEUED = "waits for the change before it"
    STARTING = "new workers start"
    WEIGHING = "workers say what their key groups weigh"
    MOVING = "state moves"
    HOLDING = "waits for the epochs under way"
    RESTARTING = "all workers start anew"
    OVER = "over"


class TransferPhase(enum.Enum):
    """Where a step of a transfer is: all that flips at one epoch boundary.

    ::

        WAITING ──▶ COPYING ──Copied by all──▶ DUE ──boundary──▶ FLIPPED ──Arrived at all──▶ ARRIVED ──commit──▶ ENDING
         ▲  ▲          │ loss, or state is read back │              │ loss: the rest is read back              ▲    │
         │  └──────────┴─────(by way of ENDING)──────┘              └──────────────────────────────────────────┘    │
         └─────────the next step, or the same one again; DONE if there is none─────────────────────────────────────┘
    """

    WAITING = "for all workers to be there with their state"
    COPYING = "state is copied ahead"
    DUE = "ownership flips at the next epoch boundary"
    FLIPPED = "state is on its way to its new owners"
    ARRIVED = "all is there, and the epoch that uses it is under way"
    ENDING = "the workers forget about it"
    DONE = "over"
