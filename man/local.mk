# man: pages, written in mdoc.
dist_man_MANS +=
