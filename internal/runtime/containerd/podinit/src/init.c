// SPDX-License-Identifier: Apache-2.0
/*
 * The first process of a container with spec.init: it starts the program that follows in its arguments, passes signals
 * on to it, reaps the processes that are left to PID 1, and exits as the program does. The program itself is not PID 1,
 * so signals that it does not handle have their usual effect.
 */

#include "program.h"

/* reap waits for all processes that have ended, and exits if the program is one of them. */
static void reap(long child)
{
	int status;
	long pid;

	while ((pid = call(WAIT4, -1, (long)&status, WNOHANG, 0)) > 0)
		if (pid == child)
			quit(status & 0x7f ? SIGNALLED + (status & 0x7f) : status >> 8 & 0xff);
}

__attribute__((used, noreturn)) static void start(long *stack)
{
	char **arguments = (char **)&stack[1], **environment = &arguments[stack[0] + 1];
	unsigned long all = ~0UL, mask;
	long child, signal;

	if (stack[0] < 2)
		quit(NOT_FOUND);
	/* Blocked signals are kept for PID 1, also those that it does not handle. */
	call(SIGPROCMASK, SETMASK, (long)&all, (long)&mask, MASK_SIZE);
	child = call(CLONE, SIGCHLD, 0, 0, 0);
	if (child == 0) {
		/* In a process group of its own, so that its "kill 0" does not reach PID 1, which would pass it on. */
		call(SETPGID, 0, 0, 0, 0);
		run(arguments + 1, environment, mask);
	}
	if (child < 0)
		quit(CANNOT_RUN);
	for (;;) {
		signal = call(SIGTIMEDWAIT, (long)&all, 0, 0, MASK_SIZE);
		if (signal == SIGCHLD)
			reap(child);
		else if (signal > 0)
			call(KILL, child, signal, 0, 0);
	}
}
