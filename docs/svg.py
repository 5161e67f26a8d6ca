"""Parts of the SVG files that docs/hero.py and docs/quality_by_size.py write, in which text stays text."""

BLUE, RED, GREEN, GRAY, INK = "#0b63b0", "#bf4a00", "#0a7d55", "#6b7076", "#1b1d20"


def opening(width: int, height: int, title: str, description: str) -> list[str]:
    """Return the first lines of a file: its size, what a screen reader reads, and a white background."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" '
        'role="img" aria-labelledby="title description" font-family="Helvetica, Arial, sans-serif">',
        f'<title id="title">{title}</title><desc id="description">{description}</desc>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]


def text(
    x: float,
    y: float,
    content: str,
    anchor: str = "start",
    size: float = 14,
    color: str = INK,
    bold: bool = False,
) -> str:
    """Return a line of text."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}"{weight}>'
        f"{content}</text>"
    )
