"""Draws one map per layer and head of what a model attends to (needs matplotlib).

python docs/attention_map.py MODEL_FOLDER "a prompt" OUT.png
"""

import sys

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from minigpt import load_checkpoint


def main() -> None:
    folder, prompt, target = sys.argv[1:]
    checkpoint = load_checkpoint(folder, "cpu")
    ids = checkpoint.tokenizer.encode(prompt)
    tokens = [checkpoint.tokenizer.decode([token]).replace("\n", "⏎") for token in ids]
    layers = checkpoint.model.attention_weights(torch.tensor([ids]))  # L of (1, H, T, T)
    n_head = checkpoint.model.config.n_head
    figure = Figure(figsize=(2.6 * n_head, 2.6 * len(layers)), layout="constrained")
    FigureCanvasAgg(figure)
    for layer, weights in enumerate(layers):
        for head in range(n_head):
            axes = figure.add_subplot(len(layers), n_head, layer * n_head + head + 1)
            axes.imshow(weights[0, head].numpy(), cmap="cividis", vmin=0, vmax=1)
            axes.set_title(f"layer {layer}, head {head}", fontsize=9)
            axes.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6)
            axes.set_yticks(range(len(tokens)), tokens, fontsize=6)
    figure.savefig(target, dpi=70)


if __name__ == "__main__":
    main()
