"""The color scale of pages: cividis, from dark blue to bright yellow, which color-blind readers can read too."""

# The colors at 0, 0.1, …, 1, from matplotlib.
# Source: Nuñez, Anderton and Renslow 2018, "Optimizing colormaps with consideration for color vision deficiency".
CIVIDIS = (
    "00224e", "083370", "35456c", "4f576c", "666970", "7d7c78", "948e77", "aea371", "c8b866", "e5cf52", "fee838"
)  # fmt: skip
