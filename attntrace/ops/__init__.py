"""The operations that attention is made of. Arrays in, arrays out: no names, no files, no printing.

Each operation is a small frozen dataclass that knows its own arithmetic:

- `forward(*operands)` computes;
- `rounding(*operands)` says how long its sums are and of what size their terms, from which `compare` works out
  how far two right implementations may lie apart;
- `spread(errors, *operands)` says how far its result moves when its operands move.

Explaining a cell (`explain`) and sending a gradient back (`backward`) belong beside them, one method each.
"""

from attntrace.ops.base import Copying, Operation
from attntrace.ops.matrix import MatMul, Project
from attntrace.ops.moves import Concat, Gather, LookUp, Merge, Repeat, Same, Split, Take
from attntrace.ops.norm import Normalise
from attntrace.ops.online import AddSink, Combine, ExpDifference, Maximum, Quotient, RowMax, RowSum
from attntrace.ops.pointwise import Activate, Add, AddMask, Cos, Divide, Dropout, Multiply, Scale, Sin, Softcap
from attntrace.ops.position import Angles, Frequencies, LinearBias, Rotate, Slopes
from attntrace.ops.softmax import SinkWeight, Softmax

__all__ = [
    "Activate",
    "Add",
    "AddMask",
    "AddSink",
    "Angles",
    "Combine",
    "Concat",
    "Copying",
    "Cos",
    "Divide",
    "Dropout",
    "ExpDifference",
    "Frequencies",
    "Gather",
    "LinearBias",
    "LookUp",
    "MatMul",
    "Maximum",
    "Merge",
    "Multiply",
    "Normalise",
    "Operation",
    "Project",
    "Quotient",
    "Repeat",
    "Rotate",
    "RowMax",
    "RowSum",
    "Same",
    "Scale",
    "Sin",
    "SinkWeight",
    "Slopes",
    "Softcap",
    "Softmax",
    "Split",
    "Take",
]
