"""Rows of the fault table as scripted prefixes: what random schedules reach too rarely, or never.

W is the writer, R1 and R2 recover, F1 reads along, A repairs; bookies are b0, b1, ...
"""

from tests.simulation.scripts import change_rows, data_rows, recovery_rows
from tests.simulation.scripts.row import ROWS, Row

__all__ = ["ROWS", "Row", "change_rows", "data_rows", "recovery_rows"]
