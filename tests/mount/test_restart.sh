#!/bin/sh
# The daemon dies, and how a mount ends.
exec "$GFS_BUILD/tests/mount/restart"
