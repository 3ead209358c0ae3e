"""Rows of measurements: what a case yields, how a row is printed and kept."""

import json
import pathlib
from dataclasses import asdict, dataclass


@dataclass
class Row:
    """bytes: what the call must move at least. flops: multiplications and additions."""

    name: str
    shape: str
    us: float
    bytes: int = 0
    flops: float = 0.0
    floor_us: float = 0.0
    spread: float = 0.0
    replays: int = 0
    note: str = ""

    @property
    def rate(self) -> str:
        if self.us <= 0:
            return "-"
        moved = f"{self.bytes / self.us * 1e-6:5.2f} TB/s" if self.bytes else ""
        done = f"{self.flops / self.us * 1e-6:6.0f} TFLOP/s" if self.flops else ""
        return "  ".join(part for part in (moved, done) if part)


HEADER = f"{'name':26} {'shape':34} {'median':>11} {'+-':>5}  rate"


def line(row: Row) -> str:
    us = f"{row.us:8.1f} us" if row.us < 1e4 else f"{row.us * 1e-3:8.2f} ms"
    if row.us <= 0:
        us = "     failed"
    tail = f"{row.rate}  {row.note}".strip()
    return f"{row.name:26} {row.shape:34} {us:>11} {row.spread * 100:4.1f}%  {tail}"


def save(path: pathlib.Path, machine: dict[str, str], rows: list[Row]) -> None:
    path.write_text(json.dumps({"machine": machine, "rows": [asdict(r) for r in rows]}, indent=1))


def load(path: pathlib.Path) -> tuple[dict[str, str], list[Row]]:
    kept = json.loads(path.read_text())
    return kept["machine"], [Row(**row) for row in kept["rows"]]


def read_winnow(path: pathlib.Path) -> list[Row]:
    """Rows `name,shape,us,bytes,flops,floor_us` out of a CSV or a bench program's whole output.

    Other lines are passed over; of rows with the same name and shape the last one counts. A JSON
    file is that of `winnow bench latency --synthetic-weights --output-json`.
    """
    text = path.read_text()
    if path.suffix == ".json":
        found = [
            Row(
                "decode_step",
                f"M = {step['tokens']} at {step['context'] >> 10}K",
                step["step_us"],
                int(step["bytes"]),
                floor_us=step["floor_us"],
            )
            for step in json.loads(text)["decode"]
        ]
    else:
        found = [row for row in map(_winnow_row, text.splitlines()) if row]
    return list({(row.name, row.shape): row for row in found}.values())


def _winnow_row(text: str) -> Row | None:
    fields = [field.strip() for field in text.split(",")]
    if len(fields) < 6:
        return None
    try:
        us, moved, flops, floor = (float(field) for field in fields[2:6])
    except ValueError:
        return None
    return Row(fields[0], fields[1], us, int(moved), flops, floor)
