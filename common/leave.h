/*
 * How a forked process of ours ends: without the exit handlers and the unwritten
 * output that it has from its parent. What LeakSanitizer does at exit() it then
 * does here, in a build with AddressSanitizer; so main, the keeper and handlers
 * are looked at like any program.
 */
#ifndef PADDOCK_COMMON_LEAVE_H
#define PADDOCK_COMMON_LEAVE_H

#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

static inline _Noreturn void leave_process(int code)
{
#ifdef __SANITIZE_ADDRESS__
    __lsan_do_leak_check(); /* does not return if it finds one */
#endif
    _exit(code);
}

#endif
