# shellcheck shell=sh
# What the driver containers of images/ share; their entry programs read it. Such a program defines `usage` and `run`, may set
# DRIVER_* before it reads this file, and ends with `main "$@"`.

say() {
    echo "${0##*/}: $1" >&2
}

fail() {
    say "$1"
    exit 1
}

: "${DRIVER_TREE:=/opt/driver}" "${DRIVER_ROOT:=/run/rbln/driver}" "${DRIVER_MODULE:=rebellions}" "${SYS_ROOT:=/sys}"
: "${DRIVER_MODULES:=$DRIVER_MODULE}" "${DRIVER_VERSION:=}" "${DRIVER_CONFIG_DIGEST:=}"
if [ -z "${STATE_FILE:-}" ]; then
    : "${READY_MARKER:=/run/rbln/validations/.driver-ctr-ready}"
fi
: "${STATE_FILE:=/run/rbln/rbln-driver.state}" "${READY_MARKER:=}"

# Atomic: readers see the old content or the new one.
write() {
    mkdir -p "$(dirname "$1")"
    printf '%s\n' "$2" >"$1.$$"
    mv "$1.$$" "$1"
}

# The module is in the kernel, in any version. Without an argument: the driver is.
is_live() {
    [ "$(cat "$SYS_ROOT/module/${1:-$DRIVER_MODULE}/initstate" 2>/dev/null)" = live ]
}

# The driver is loaded, all of it, and it is the wanted one. Prints what is wrong.
is_loaded() {
    for module in $DRIVER_MODULES; do
        is_live "$module" || { say "module $module is not loaded"; return 1; }
    done
    loaded=$(cat "$SYS_ROOT/module/$DRIVER_MODULE/version" 2>/dev/null || true)
    [ -z "$DRIVER_VERSION" ] || [ "$loaded" = "$DRIVER_VERSION" ] ||
        { say "module $DRIVER_MODULE is loaded in version $loaded, wanted is $DRIVER_VERSION"; return 1; }
}

is_recorded() {
    [ "$(cat "$STATE_FILE" 2>/dev/null)" = "$DRIVER_CONFIG_DIGEST" ]
}

# The tree has modules for the running kernel, whose release it leaves in `kernel`.
find_modules() {
    kernel=$(uname -r)
    [ -d "$1/lib/modules/$kernel" ] || fail "$1 has no modules for kernel $kernel; use a package that was built for it"
}

list_modules() {
    [ -e "$1/lib/modules/$kernel/modules.dep" ] || depmod -b "$1" "$kernel"
}

# Load these modules from the driver root, in this order, and record the digest once they are there.
load() {
    for module in "$@"; do
        # Loading over a loaded module does nothing and succeeds, in any version: the check after it decides.
        modprobe -d "$DRIVER_ROOT" "$module" || fail "module $module cannot be loaded; see the kernel log"
    done
    is_loaded || fail "the driver is not the wanted one; driver-manager unloads the old one before this container starts"
    write "$STATE_FILE" "$DRIVER_CONFIG_DIGEST"
    say "driver ${DRIVER_VERSION:-of $DRIVER_TREE} is loaded from $DRIVER_ROOT"
}

stay() {
    while :; do
        sleep 3600 &
        wait $!
    done
}

ready() {
    is_recorded || { say "the driver is not recorded in $STATE_FILE"; exit 1; }
    is_loaded || exit 1
    [ -z "$READY_MARKER" ] || write "$READY_MARKER" "$DRIVER_VERSION"
}

stop() {
    [ -z "$READY_MARKER" ] || rm -f "$READY_MARKER"
}

main() {
    case ${1:-run} in
        run | ready)
            [ -n "$DRIVER_CONFIG_DIGEST" ] ||
                fail "DRIVER_CONFIG_DIGEST is not set; set it from the pod's annotation driver-manager.rebellions.ai/driver-config-digest"
            # Split and joined again: names may be on lines of their own.
            case " $(echo $DRIVER_MODULES) " in
                *" $DRIVER_MODULE "*) ;;
                *) fail "DRIVER_MODULES has no $DRIVER_MODULE; add it, or set DRIVER_MODULE to one of them" ;;
            esac
            "${1:-run}"
            ;;
        stop) stop ;;
        help | -h | --help) usage ;;
        *) usage >&2; exit 2 ;;
    esac
}
