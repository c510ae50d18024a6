// SPDX-License-Identifier: Apache-2.0
/*
 * The first process of a container of a prepared pod: it waits for a signal, and becomes the program that follows in
 * its arguments. All signals are blocked meanwhile, so that one that comes early is kept, and others end nothing.
 */

#include "program.h"

__attribute__((used, noreturn)) static void start(long *stack)
{
	char **arguments = (char **)&stack[1], **environment = &arguments[stack[0] + 1];
	unsigned long all = ~0UL, wake = 1UL << (SIGUSR1 - 1), mask;
	long signal;

	if (stack[0] < 2)
		quit(NOT_FOUND);
	call(SIGPROCMASK, SETMASK, (long)&all, (long)&mask, MASK_SIZE);
	do
		signal = call(SIGTIMEDWAIT, (long)&wake, 0, 0, MASK_SIZE);
	while (signal == -EINTR); /* after SIGSTOP */
	if (signal < 0)
		quit(CANNOT_RUN);
	run(arguments + 1, environment, mask);
}
