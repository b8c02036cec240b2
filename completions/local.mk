# completions: of the shells. A file here is named as the command it completes.
gfs_bash_completions = completions/gatherfs
EXTRA_DIST += $(gfs_bash_completions)

if WITH_BASH_COMPLETION
bashcompletion_DATA = $(gfs_bash_completions)
endif
