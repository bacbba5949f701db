"""Pictures of results: what a chart shows, its ticks, and how SVG and a terminal draw it."""
