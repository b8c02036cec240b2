#!/bin/sh
# Commands, pins and events.
exec "$GFS_BUILD/tests/mount/commands"
