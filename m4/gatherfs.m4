# GFS_ARG_WITH(NAME, WHAT, [EXTRA-VALUES])
# ----------------------------------------
# Defines --with-NAME=yes|no|auto (auto if not given), sets with_NAME, and refuses any value that
# is neither one of these nor one of EXTRA-VALUES (separated by `|').
AC_DEFUN([GFS_ARG_WITH], [
  AC_ARG_WITH([$1],
    [AS_HELP_STRING([--with-$1=yes|no|auto[]m4_ifval([$3], [|$3])], [$2 (auto)])],
    [], [with_$1=auto])
  AS_CASE([$with_$1],
    [yes|no|auto[]m4_ifval([$3], [|$3])], [],
    [AC_MSG_ERROR([--with-$1=$with_$1: expected yes, no, auto[]m4_ifval([$3],
      [ or one of m4_bpatsubst([$3], [|], [, ])])])])
])

# GFS_SYSTEM_INCLUDES(VARIABLE)
# -----------------------------
# Turns -I of VARIABLE into -isystem: warnings are for our own code, not for foreign headers.
AC_DEFUN([GFS_SYSTEM_INCLUDES], [
  $1=`AS_ECHO([" $$1"]) | sed 's/ -I */ -isystem /g; s/^ //'`
])

# GFS_REQUIRE_PKG(PREFIX, PKG-CONFIG-SPEC, DEBIAN-PACKAGE)
# --------------------------------------------------------
# Sets PREFIX_CFLAGS and PREFIX_LIBS, or ends configure with the package that is wanted.
AC_DEFUN([GFS_REQUIRE_PKG], [
  PKG_CHECK_MODULES([$1], [$2], [],
    [AC_MSG_ERROR([$2 not found (Debian: apt-get install $3)])])
  GFS_SYSTEM_INCLUDES([$1_CFLAGS])
])

# GFS_WITH_PKG(NAME, PREFIX, PKG-CONFIG-SPEC, DEBIAN-PACKAGE, WHAT)
# -----------------------------------------------------------------
# An optional library that pkg-config knows: --with-NAME=yes|no|auto, have_NAME, PREFIX_CFLAGS and
# PREFIX_LIBS, the conditional HAVE_PREFIX, and HAVE_PREFIX in config.h.
AC_DEFUN([GFS_WITH_PKG], [
  GFS_ARG_WITH([$1], [$5])
  have_$1=no
  AS_IF([test "x$with_$1" != xno],
    [PKG_CHECK_MODULES([$2], [$3], [have_$1=yes],
      [AS_IF([test "x$with_$1" = xyes],
        [AC_MSG_ERROR([--with-$1=yes, but $3 not found (Debian: apt-get install $4)])])])])
  GFS_SYSTEM_INCLUDES([$2_CFLAGS])
  AS_IF([test "x$have_$1" = xyes],
    [AC_DEFINE([HAVE_$2], [1], [Define to 1 if built with $1.])])
  AM_CONDITIONAL([HAVE_$2], [test "x$have_$1" = xyes])
])

# GFS_WITH_MPI
# ------------
# --with-mpi=yes|no|auto|openmpi|mpich: have_mpi, gfs_mpi_name, MPI_CFLAGS, MPI_LIBS and the name of
# the launcher. The launcher is called by a name that only its own MPI has: that of another MPI would
# start N worlds of one rank, and end with success.
AC_DEFUN([GFS_WITH_MPI], [
  GFS_ARG_WITH([mpi], [run ranks under MPI, found by pkg-config], [openmpi|mpich])
  have_mpi=no
  gfs_mpi_name=none
  AS_CASE([$with_mpi], [yes|auto|openmpi],
    [PKG_CHECK_MODULES([OMPI], [ompi-c],
      [have_mpi=yes
       gfs_mpi_name=openmpi
       MPI_CFLAGS=$OMPI_CFLAGS
       MPI_LIBS=$OMPI_LIBS], [:])])
  AS_IF([test "x$have_mpi" = xno],
    [AS_CASE([$with_mpi], [yes|auto|mpich],
      [PKG_CHECK_MODULES([MPICH], [mpich],
        [have_mpi=yes
         gfs_mpi_name=mpich
         MPI_CFLAGS=$MPICH_CFLAGS
         MPI_LIBS=$MPICH_LIBS], [:])])])
  AS_IF([test "x$have_mpi" = xno],
    [AS_CASE([$with_mpi],
      [mpich], [AC_MSG_ERROR([--with-mpi=mpich, but mpich not found (Debian: apt-get install libmpich-dev)])],
      [yes|openmpi], [AC_MSG_ERROR([--with-mpi=$with_mpi, but ompi-c not found (Debian: apt-get install libopenmpi-dev)])])])

  AC_ARG_VAR([GFS_MPI_LAUNCHER], [launcher of the MPI, called by name])
  AS_CASE([$gfs_mpi_name],
    [openmpi], [AC_CHECK_PROGS([GFS_MPI_LAUNCHER], [mpirun.openmpi orterun], [mpirun.openmpi])],
    [mpich], [AC_CHECK_PROGS([GFS_MPI_LAUNCHER], [mpiexec.hydra], [mpiexec.hydra])],
    [GFS_MPI_LAUNCHER=])

  GFS_SYSTEM_INCLUDES([MPI_CFLAGS])
  GFS_MPI_NAME=$gfs_mpi_name
  AC_SUBST([MPI_CFLAGS])
  AC_SUBST([MPI_LIBS])
  AC_SUBST([GFS_MPI_NAME])
  AC_DEFINE_UNQUOTED([GFS_MPI_LAUNCHER], ["$GFS_MPI_LAUNCHER"],
    [Launcher of the MPI, "" if built without.])
  AC_DEFINE_UNQUOTED([GFS_MPI_NAME], ["$GFS_MPI_NAME"],
    [MPI that the ranks are built with: "openmpi", "mpich" or "none".])
  AS_IF([test "x$have_mpi" = xyes],
    [AC_DEFINE([HAVE_MPI], [1], [Define to 1 if built with MPI.])])
  AM_CONDITIONAL([HAVE_MPI], [test "x$have_mpi" = xyes])
])

# GFS_CC_FLAGS(VARIABLE, FLAGS)
# -----------------------------
# Appends to VARIABLE those of FLAGS that the compiler takes.
AC_DEFUN([GFS_CC_FLAGS], [
  for gfs_flag in $2; do
    AS_VAR_PUSHDEF([gfs_cache], [gfs_cv_cc_$gfs_flag])
    AC_CACHE_CHECK([whether $CC takes $gfs_flag], [gfs_cache],
      [gfs_saved_cflags=$CFLAGS
       CFLAGS="$CFLAGS -Werror $gfs_flag"
       AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
         [AS_VAR_SET([gfs_cache], [yes])], [AS_VAR_SET([gfs_cache], [no])])
       CFLAGS=$gfs_saved_cflags])
    AS_VAR_IF([gfs_cache], [yes], [AS_VAR_APPEND([$1], [" $gfs_flag"])])
    AS_VAR_POPDEF([gfs_cache])
  done
])

# GFS_WITH_SANITIZER
# ------------------
# --with-sanitizer=address,undefined|thread|no: GFS_SANITIZER_CFLAGS, for compiling and linking.
AC_DEFUN([GFS_WITH_SANITIZER], [
  AC_ARG_WITH([sanitizer],
    [AS_HELP_STRING([--with-sanitizer=address,undefined|thread|no], [build with sanitizers (no)])],
    [], [with_sanitizer=no])
  GFS_SANITIZER_CFLAGS=
  AS_CASE([$with_sanitizer],
    [no], [],
    [address,undefined|address|undefined|thread],
      dnl Sanitizer code makes gcc see null pointers where there are none.
      [GFS_SANITIZER_CFLAGS="-fsanitize=$with_sanitizer -fno-sanitize-recover=all -fno-omit-frame-pointer -Wno-null-dereference"
       gfs_saved_cflags=$CFLAGS
       CFLAGS="$CFLAGS $GFS_SANITIZER_CFLAGS"
       AC_MSG_CHECKING([whether $CC links with -fsanitize=$with_sanitizer])
       AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])],
         [AC_MSG_RESULT([yes])],
         [AC_MSG_RESULT([no])
          AC_MSG_ERROR([--with-sanitizer=$with_sanitizer, but $CC cannot link with it])])
       CFLAGS=$gfs_saved_cflags],
    [AC_MSG_ERROR([--with-sanitizer=$with_sanitizer: expected address,undefined, address, undefined, thread or no])])
  AC_SUBST([GFS_SANITIZER_CFLAGS])
])
