"""What a pair check found, as one object of JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import MessageToDict

from outrider.advisor.advice import Advice, Check, Lane, Prediction
from outrider.advisor.curves import Acceptance, CycleTimes
from outrider.advisor.runs import Setting
from outrider.monotone_table import MonotoneTable
from outrider.v1 import common_pb2


@dataclass(frozen=True, slots=True)
class Pair:
    """Both sides, and what forbids that they work together; empty where nothing does."""

    target: common_pb2.ModelIdentity
    draft: common_pb2.ModelIdentity
    obstacles: tuple[str, ...]
    sources: tuple[str, ...] = ()
    """Those that are measured."""

    @property
    def fits(self) -> bool:
        """True where the draft may serve the target."""
        return not self.obstacles


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that was found; of a pair that does not fit nothing is measured."""

    pair: Pair
    accepted: Mapping[Lane, Mapping[int, Acceptance]] = field(default_factory=dict)
    passes: Mapping[float, MonotoneTable] = field(default_factory=dict)
    """What passes take by their rows, by temperature."""
    times: Mapping[Setting, CycleTimes] = field(default_factory=dict)
    predictions: Sequence[Prediction] = ()
    advice: Sequence[Advice] = ()

    @property
    def pays(self) -> bool:
        """True if some setting pays at some load."""
        return any(each.pays for each in self.advice)

    def as_json(self) -> dict[str, Any]:
        """Return it for a file; times in milliseconds."""
        pair = self.pair
        return {
            "target": MessageToDict(pair.target, preserving_proto_field_name=True),
            "draft": MessageToDict(pair.draft, preserving_proto_field_name=True),
            "fits": pair.fits,
            "obstacles": list(pair.obstacles),
            "sources": list(pair.sources),
            "pays": self.pays,
            "acceptance": [
                {
                    "temperature": temperature,
                    "source": source,
                    "num_draft_tokens": length,
                    "mean_acceptance_length": each.mean_acceptance_length,
                    "arrival": each.arrival,
                    "accepted_by_position": each.by_position,
                    "num_drafts": each.num_drafts,
                    "is_tree": each.is_tree,
                }
                for (temperature, source), by_length in self.accepted.items()
                for length, each in by_length.items()
            ],
            "pass_ms_by_rows": [
                {"temperature": temperature, "rows": rows, "ms": bucket.mean, "num": bucket.weight}
                for temperature, table in self.passes.items()
                for rows, bucket in sorted(table.buckets.items())
            ],
            "cycles": [
                _setting(setting)
                | {
                    "pass_ms": each.pass_ms,
                    "beside_pass_ms": each.beside_ms,
                    "draft_wait_ms": each.wait_ms,
                    "draft_compute_ms": each.compute_ms,
                    "rows_in_pass": each.rows,
                    "own_rows": each.own_rows,
                }
                for setting, each in self.times.items()
            ],
            "predictions": [_prediction(each) for each in self.predictions],
            "advice": [
                _prediction(each.best)
                | {"pays": each.pays, "check": each.check and _check(each.check)}
                for each in self.advice
            ],
        }


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "temperature": setting.temperature,
        "num_streams": setting.num_streams,
        "source": setting.source,
        "num_draft_tokens": setting.num_draft_tokens,
    }


def _prediction(each: Prediction) -> dict[str, Any]:
    return _setting(each.setting) | {
        "accepted_per_draft": each.accepted,
        "arrival": each.arrival,
        "cycle_ms": each.cycle_ms,
        "predicted_tokens_per_s": each.tokens_per_s,
        "predicted_gain": each.gain,
    }


def _check(check: Check) -> dict[str, Any]:
    return {
        "tokens_per_s": check.tokens_per_s,
        "target_only_tokens_per_s": check.alone_tokens_per_s,
        "gain": check.gain,
        "gains": list(check.gains),
        "num_answers": check.num_answers,
        "num_differing": check.num_differing,
    }
