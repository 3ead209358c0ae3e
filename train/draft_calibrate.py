# ruff: noqa: E501
"""Scale a trained drafter's logits and its Markov bias so that most drafts are accepted.

A drafter that has seen its texts several times is no judge of how sure to be on others. Both factors go into
stored weights: no other weight, shape or name changes. Texts are neither those of the training nor those
that the result is measured on.

  python draft_calibrate.py trained/drafter.pt --model ../models/winnow-tiny --streams other.safetensors \\
      --scales 1,1 1.2,1.3 1.3,1.4 --out calibrated.pt
"""

import argparse
import types

import draft_data
import draft_loss
import draft_measure
import draft_model
import draft_train
import torch

ROOT = draft_model.ROOT


def scaled(named, hidden, markov):
    """Published tensors whose head logits are `hidden` and whose bias is `markov` times as large; the confidence
    head says what it said."""
    out = dict(named)
    norm = named[ROOT + "final_norm.weight"].float()
    out[ROOT + "final_norm.weight"] = ((1 + norm) * hidden - 1).bfloat16()
    w2 = ROOT + "markov_head.markov_w2.weight"
    out[w2] = (named[w2].float() * markov).bfloat16()
    head = ROOT + "confidence_head.proj.weight"
    confidence = named[head].float()
    confidence[:, : len(norm)] /= hidden
    out[head] = confidence.bfloat16()
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("trained")
    ap.add_argument("--model", required=True)
    ap.add_argument("--streams", required=True, help="what `winnow capture` wrote")
    ap.add_argument(
        "--scales", nargs="+", default=["1,1", "1.1,1.1", "1.2,1.3", "1.3,1.4", "1.4,1.5"]
    )
    ap.add_argument("--texts", type=int, default=400)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    saved = torch.load(a.trained, map_location="cpu", weights_only=True)
    text = saved["config"]["text_config"]
    layers = tuple(text["dspark_target_layer_ids"])
    target = draft_data.Target(a.model, a.device, torch.float32)
    data = draft_data.Streams([a.streams], layers, target, a.device, torch.float32)
    settings = types.SimpleNamespace(batch=1, length_share=0.0)
    backend = draft_loss.choose_backend(a.device)
    choices = {"target_layers": layers, "rank": text["dspark_markov_rank"]}
    run = draft_train.Run(target, data, settings, backend, **choices)
    best = None
    for pair in a.scales:
        named = scaled(saved["tensors"], *map(float, pair.split(",")))
        draft_model.load(run.drafter, named)
        result = draft_measure.evaluate(run, data, a.texts)
        print(pair, result, flush=True)
        if best is None or result["length"] > best:
            best = result["length"]
            torch.save({"tensors": named, "config": saved["config"]}, a.out)


if __name__ == "__main__":
    main()
