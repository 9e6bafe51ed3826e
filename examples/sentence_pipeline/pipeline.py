"""A SentenceTransformer whose encoder is compiled: `encode`, prompts and pooling stay those of sentence-transformers."""

import numpy as np
from model import save_model
from sentence_transformers import SentenceTransformer

from disc.hf.sentences import DiscTransformer

QUERY = "a cat on a mat"
TEXTS = ["the cat sat on the mat", "the dog ran very far", "the cat ran"]


def main() -> None:
    save_model("whole")  # a folder of your own does as well
    model = SentenceTransformer("whole", device="cpu")
    eager = np.asarray(model.encode([QUERY, *TEXTS]))
    model[0] = DiscTransformer.load("whole")
    query, *vectors = found = np.asarray(model.encode([QUERY, *TEXTS]))
    for text, vector in sorted(zip(TEXTS, vectors, strict=True), key=lambda each: -float(query @ each[1])):
        print(f"{float(query @ vector):.3f} {text}")
    print(f"largest difference to eager: {np.abs(found - eager).max():.1e}")


if __name__ == "__main__":
    main()
