"""Images as cameras give them (8 bits, channels last, any size) to the five best classes: all of it is in the compiled model. Writes
classifier.disc."""

import torch
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification

import disc

SIZE = 64  # of the images that the network sees


class Classifier(nn.Module):
    """images [count, height, width, 3], 8 bits → the five best classes [count, 5] and their probabilities [count, 5]."""

    def __init__(self, network: ResNetForImageClassification) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        x = images.permute(0, 3, 1, 2).float() / 255
        x = nn.functional.interpolate(x, (SIZE, SIZE), mode="bilinear", align_corners=False)
        logits = self.network((x - self.mean) / self.deviation).logits
        scores, classes = logits.softmax(-1).topk(5)
        return {"classes": classes, "scores": scores}


def main() -> None:
    torch.manual_seed(0)  # random weights: ResNetForImageClassification.from_pretrained("FOLDER") for yours
    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=10)
    model = Classifier(ResNetForImageClassification(config)).eval()
    example = torch.randint(0, 256, (2, 80, 96, 3), dtype=torch.uint8)
    free = torch.export.Dim.DYNAMIC
    disc.compile(model, example, {"images": {0: free, 1: free, 2: free}}).save("classifier.disc")


if __name__ == "__main__":
    main()
