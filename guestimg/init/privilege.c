/*
 * Who we are, and how the guest's user is kept away from us. privilege_init is
 * called once by PID 1 before anything else; supervisors inherit the result.
 * What must stay true: real and saved user id are 0, memory is not dumpable (so
 * no tracing and no /proc/PID/mem), every signal is blocked, and no capability
 * but four is held.
 */
#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guestimg/init/init.h"

static const unsigned kept_capabilities[] = {CAP_KILL, CAP_SETGID, CAP_SETUID,
                                             CAP_NET_BIND_SERVICE};

#define KERNEL_SIGSET_BYTES 8

static uint64_t kept_mask(void)
{
    uint64_t mask = 0;
    for (size_t i = 0; i < sizeof(kept_capabilities) / sizeof(kept_capabilities[0]); i++)
        mask |= UINT64_C(1) << kept_capabilities[i];
    return mask;
}

static int reset_signals(struct error *err)
{
    /* By the system call: the C library refuses 32 and 33, which it keeps for itself, but whoever
     * started us may have left them ignored. All zeros is SIG_DFL with no flags; the kernel's
     * struct is shorter than this. KILL and STOP refuse. */
    static const unsigned long defaults[8];
    for (int number = 1; number < NSIG; number++)
        (void)syscall(SYS_rt_sigaction, number, defaults, NULL, KERNEL_SIGSET_BYTES);
    sigset_t all;
    sigfillset(&all);
    if (sigprocmask(SIG_SETMASK, &all, NULL) < 0)
        return error_set_errno(err, "sigprocmask");
    return 0;
}

static int drop_capabilities(struct error *err)
{
    uint64_t keep = kept_mask();
    /* Needs CAP_SETPCAP, which a guest's PID 1 lacks: its bounding set is given by the bundle. */
    for (unsigned cap = 0; cap <= 63; cap++) {
        if (!(keep >> cap & 1) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
            break;
    }
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);

    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}, {0}};
    if (syscall(SYS_capget, &header, data) < 0)
        return error_set_errno(err, "capget");
    uint64_t permitted = (uint64_t)data[1].permitted << 32 | data[0].permitted;
    if ((permitted & keep) != keep)
        return error_set(err, ERR_PREFLIGHT,
                         "CAP_KILL, CAP_SETGID, CAP_SETUID and CAP_NET_BIND_SERVICE are needed");
    for (unsigned i = 0; i < 2; i++) {
        data[i].permitted = data[i].effective = (uint32_t)(keep >> (32 * i));
        data[i].inheritable = 0;
    }
    if (syscall(SYS_capset, &header, data) < 0)
        return error_set_errno(err, "capset");
    return 0;
}

int privilege_init(struct error *err)
{
    if (getuid() != 0 || geteuid() != 0)
        return error_set(err, ERR_PREFLIGHT, "must run as user 0");
    if (reset_signals(err) < 0)
        return -1;
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return error_set_errno(err, "PR_SET_DUMPABLE");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return error_set_errno(err, "PR_SET_NO_NEW_PRIVS");
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        return error_set_errno(err, "PR_SET_CHILD_SUBREAPER");
    if (setgroups(0, NULL) < 0)
        return error_set_errno(err, "setgroups");
    if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        return error_set_errno(err, "setresuid");
    if (drop_capabilities(err) < 0)
        return -1;
    umask(077);
    if (chdir("/") < 0)
        return error_set_errno(err, "chdir /");
    return 0;
}

void privilege_borrow_user(const struct init_options *options)
{
    if (setresgid((gid_t)-1, options->gid, (gid_t)-1) < 0 ||
        setresuid((uid_t)-1, options->uid, (uid_t)-1) < 0)
        abort();
}

void privilege_return(void)
{
    /* The user id first: with it the capability to change the group comes back. */
    if (setresuid((uid_t)-1, 0, (uid_t)-1) < 0 || setresgid((gid_t)-1, 0, (gid_t)-1) < 0)
        abort();
    /* A change of the effective id may have touched the flag (prctl(2)). */
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        abort();
}
