"""Drawing: heatmaps, shaded text and reports for the terminal; figures as PNG, SVG or PDF."""

from .head_report import TokenLink, best_heads_table, label_table, link_table, strongest_links
from .matplotlib_figures import check_figure_path, save_curves, save_head_maps, save_heatmap
from .picture_overlay import overlay, save_caption_figure
from .rich_svg import to_svg
from .shaded_text import ShadedText, sparkline
from .sound_figure import save_sound_figure
from .terminal_heatmap import Heatmap, heatmap

__all__ = [
    "Heatmap",
    "ShadedText",
    "TokenLink",
    "best_heads_table",
    "check_figure_path",
    "heatmap",
    "label_table",
    "link_table",
    "overlay",
    "save_caption_figure",
    "save_curves",
    "save_head_maps",
    "save_heatmap",
    "save_sound_figure",
    "sparkline",
    "strongest_links",
    "to_svg",
]
