"""Writes a bf16 copy of an M3.1-layout checkpoint, for engines that do not read NVFP4 and MXFP8.

usage: dequantize.py IN OUT [--llama-cpp]

With --llama-cpp the copy fits llama.cpp's converter, whose M3 has no index branch in the leading
dense layers: those layers' index tensors are left out, so the peer attends densely there.
"""

import argparse
import json
import pathlib
import shutil

import ml_dtypes
import numpy as np

DTYPES = {
    "F32": np.float32,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "U8": np.uint8,
}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def read_tensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = np.memmap(path, np.uint8, mode="r")
        size = int(data[:8].view(np.uint64)[0])
        for name, entry in json.loads(bytes(data[8 : 8 + size])).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            tensors[name] = data[begin:end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def nvfp4(packed: np.ndarray, scale: np.ndarray, multiplier: float) -> np.ndarray:
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    values = np.where(codes & 8, -1, 1).astype(np.float32) * E2M1[codes & 7]
    return values * np.repeat(scale.astype(np.float32), 16, axis=1) * np.float32(multiplier)


def mxfp8(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    factors = np.exp2(scale.astype(np.float32) - 127)
    return values.astype(np.float32) * np.repeat(factors, 32, axis=1)


def dequantize(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    plain = {}
    for name, value in tensors.items():
        stem = name.removesuffix(".weight")
        if name.endswith(".weight_packed"):
            stem = name.removesuffix(".weight_packed")
            divisor = float(tensors[stem + ".weight_global_scale"].reshape(-1)[0])
            plain[stem + ".weight"] = nvfp4(value, tensors[stem + ".weight_scale"], 1 / divisor)
        elif stem + ".weight_scale_inv" in tensors and name != stem:
            plain[name] = mxfp8(value, tensors[stem + ".weight_scale_inv"])
        elif not name.endswith(("_scale", "_scale_inv", "_global_scale")):
            plain[name] = value
    return plain


def write_safetensors(path: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    header, blobs, offset = {}, [], 0
    for name, value in tensors.items():
        keep_f32 = name.endswith(("gate.weight", "e_score_correction_bias"))
        blob = value.astype(np.float32 if keep_f32 else ml_dtypes.bfloat16).tobytes()
        header[name] = {
            "dtype": "F32" if keep_f32 else "BF16",
            "shape": list(value.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for blob in blobs:
            file.write(blob)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--llama-cpp", action="store_true")
    arguments = parser.parse_args()
    arguments.target.mkdir(parents=True, exist_ok=True)
    config = json.loads((arguments.source / "config.json").read_text())
    config.pop("quantization_config", None)
    config.get("text_config", {}).pop("quantization_config", None)
    tensors = dequantize(read_tensors(arguments.source))
    if arguments.llama_cpp:
        text = config.get("text_config", config)
        dense = [layer for layer, moe in enumerate(text["moe_layer_freq"]) if not moe]
        skip = tuple(f"layers.{layer}.self_attn.index_" for layer in dense)
        tensors = {n: v for n, v in tensors.items() if not any(part in n for part in skip)}
    (arguments.target / "config.json").write_text(json.dumps(config, indent=2))
    write_safetensors(arguments.target / "model.safetensors", tensors)
    for pattern in ("tokenizer*.json", "generation_config.json", "*.jinja"):
        for path in arguments.source.glob(pattern):
            shutil.copy(path, arguments.target)


if __name__ == "__main__":
    main()
