"""Sends images of several sizes as raw bytes (the binary data of the Open Inference Protocol) and prints the best class of each."""

import json
import urllib.request
from typing import Any

import numpy as np

URL = "http://127.0.0.1:8000/v2/models/classifier/infer"


def classify(images: np.ndarray[Any, Any]) -> dict[str, list[float]]:
    """The outputs by name, each in one row. images: [count, height, width, 3], 8 bits. Raises urllib.error.HTTPError."""
    about = {"name": "images", "datatype": "UINT8", "shape": list(images.shape), "parameters": {"binary_data_size": images.nbytes}}
    head = json.dumps({"inputs": [about]}).encode()
    request = urllib.request.Request(URL, head + images.tobytes(), {"Inference-Header-Content-Length": str(len(head))})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return {each["name"]: each["data"] for each in json.load(answer)["outputs"]}


if __name__ == "__main__":
    pixels = np.random.default_rng(0)
    for count, height, width in ((1, 64, 64), (2, 120, 90), (1, 37, 201)):
        found = classify(pixels.integers(0, 256, (count, height, width, 3), np.uint8))
        for number in range(count):
            print(f"{height} x {width}: class {found['classes'][5 * number]}, probability {found['scores'][5 * number]:.3f}")
