// Numbers shared with Python. Written by tools/viewer_javascript.py: change them there.

export const TILE_SIDE = 256; // cells along a tile of the map
export const SMALL_MAP_SIDE = 32; // cells along a small map of the Model view
export const NEAR = 8.673617379884035e-19; // distances below this count as equal
export const ROTARY_BASE = 10000.0; // of sinusoidal and rotary positions
