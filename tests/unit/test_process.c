/* The end of a process: before it, at it, as a zombie, and after. */
#include "common/process.h"

#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_MS 60000

static pid_t start_sleeper(void)
{
    pid_t pid = fork();

    if (pid == 0)
        for (;;)
            pause();
    ck_assert_int_gt(pid, 0);
    return pid;
}

START_TEST(a_living_one_has_not_ended)
{
    pid_t pid = start_sleeper();

    ck_assert(!process_has_ended(pid, 0));
    ck_assert(!process_has_ended(pid, 20));
    ck_assert(!process_has_ended(1, 0));
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}
END_TEST

START_TEST(a_killed_one_is_waited_for_and_needs_no_reaper)
{
    pid_t pid = start_sleeper();

    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert(process_has_ended(pid, LONG_MS));
    ck_assert_int_eq(kill(pid, 0), 0); /* a zombie */
    ck_assert(process_has_ended(pid, 0));
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert(process_has_ended(pid, 0));
}
END_TEST

START_TEST(what_is_no_process_number_has_not_ended)
{
    ck_assert(!process_has_ended(0, 0));
    ck_assert(!process_has_ended(-1, 0));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("process");
    TCase *tcase = tcase_create("process");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_add_test(tcase, a_living_one_has_not_ended);
    tcase_add_test(tcase, a_killed_one_is_waited_for_and_needs_no_reaper);
    tcase_add_test(tcase, what_is_no_process_number_has_not_ended);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
