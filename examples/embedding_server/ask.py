"""Sends texts and prints how near they are to each other: the cosines of their embeddings."""

import json
import time
import urllib.error
import urllib.request

TEXTS = ["the cat sat on the mat", "a cat sat on a mat", "the dog ran very far"]
SERVER = "http://127.0.0.1:8000"
PATIENCE_S = 120  # the server may still be compiling its model


def wait_until_ready() -> None:
    """Returns when the server can answer. Raises urllib.error.URLError where it cannot in time."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            urllib.request.urlopen(f"{SERVER}/v2/health/ready", timeout=10).close()
            return
        except urllib.error.URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def embed(texts: list[str]) -> list[list[float]]:
    """A vector of length 1 for each text. Raises urllib.error.HTTPError, whose body says what is wrong."""
    request = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}]}
    with urllib.request.urlopen(
        urllib.request.Request(f"{SERVER}/v2/models/sentences/infer", json.dumps(request).encode()), timeout=30
    ) as answer:
        (output,) = (each for each in json.load(answer)["outputs"] if each["name"] == "sentence_embedding")
    width = output["shape"][1]
    return [output["data"][start : start + width] for start in range(0, len(output["data"]), width)]


if __name__ == "__main__":
    wait_until_ready()
    vectors = embed(TEXTS)
    for first, vector in zip(TEXTS, vectors, strict=True):
        print(*(f"{sum(a * b for a, b in zip(vector, other, strict=True)):6.3f}" for other in vectors), first)
