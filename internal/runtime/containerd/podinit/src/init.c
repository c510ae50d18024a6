// SPDX-License-Identifier: Apache-2.0
/*
 * The first process of a container with spec.init: it starts the program that follows in its arguments, passes signals
 * on to it, reaps the processes that are left to PID 1, and exits as the program does. The program itself is not PID 1,
 * so signals that it does not handle have their usual effect.
 *
 * It has no library, no data and no relocations: package podinit makes an executable of the code alone.
 */

#if defined(__x86_64__)
enum { WRITE = 1, SIGPROCMASK = 14, CLONE = 56, EXECVE = 59, WAIT4 = 61, KILL = 62, SETPGID = 109, SIGTIMEDWAIT = 128,
	EXIT_GROUP = 231 };

__asm__(".text\n"
	"	mov %rsp, %rdi\n"
	"	and $-16, %rsp\n"
	"	call start\n");

static long call(long number, long a, long b, long c, long d)
{
	long result;
	register long fourth __asm__("r10") = d;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
			 : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
enum { WRITE = 64, SIGPROCMASK = 135, CLONE = 220, EXECVE = 221, WAIT4 = 260, KILL = 129, SETPGID = 154,
	SIGTIMEDWAIT = 137, EXIT_GROUP = 94 };

__asm__(".text\n"
	"	mov x0, sp\n"
	"	bl start\n");

static long call(long number, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}
#else
#error "no system calls for this architecture"
#endif

/* Constants of the kernel that are the same on both architectures. */
enum { ENOENT = 2, ENOEXEC = 8, EACCES = 13, ENOTDIR = 20, SIGCHLD = 17, SETMASK = 2, WNOHANG = 1, MASK_SIZE = 8 };

enum { PATH_MAX = 4096, STDERR = 2 };

/* Exit statuses of shells. */
enum { CANNOT_RUN = 126, NOT_FOUND = 127, SIGNALLED = 128 };

/* Texts stand in the code, because data would need a relocation. */
#define TEXT(name, text) \
	__asm__(".text\n" #name ": .asciz \"" text "\"\n.balign 8\n"); \
	extern const char name[] __attribute__((visibility("hidden")))

TEXT(cannot_run, "wangell: spec.init cannot run ");
TEXT(not_found, ": no such program in the image\\n");
TEXT(not_allowed, ": permission denied\\n");
TEXT(no_format, ": not a program of this architecture, nor a script with an interpreter\\n");
TEXT(failed, ": the kernel refuses it\\n");
TEXT(path_variable, "PATH=");

static long length(const char *text)
{
	long n = 0;

	while (text[n])
		n++;
	return n;
}

static void print(const char *text) { call(WRITE, STDERR, (long)text, length(text), 0); }

/* path returns the value of the variable PATH; 0 if it is not set. */
static const char *path(char **environment)
{
	for (; *environment; environment++) {
		const char *variable = *environment, *name = path_variable;

		while (*name && *variable == *name)
			variable++, name++;
		if (!*name)
			return variable;
	}
	return 0;
}

/* run_in executes a program of the folder at the start of list, which ends at a colon. It returns only on failure. */
static long run_in(const char *list, char **arguments, char **environment)
{
	char file[PATH_MAX];
	long n = 0;

	for (; *list && *list != ':' && n < PATH_MAX - 1; list++)
		file[n++] = *list;
	if (n)
		file[n++] = '/';
	for (const char *c = arguments[0]; *c; c++) {
		if (n >= PATH_MAX - 1)
			return -ENOENT;
		file[n++] = *c;
	}
	file[n] = 0;
	return call(EXECVE, (long)file, (long)arguments, (long)environment, 0);
}

/* run executes a program, which it looks up in PATH as execvp(3) does. It returns only on failure. */
static long run(char **arguments, char **environment)
{
	const char *folders = path(environment);
	long err, worst = -ENOENT;

	for (const char *c = arguments[0]; *c; c++)
		if (*c == '/')
			return call(EXECVE, (long)arguments[0], (long)arguments, (long)environment, 0);
	while (folders && *folders) {
		err = run_in(folders, arguments, environment);
		if (err != -ENOENT && err != -ENOTDIR)
			worst = err;
		while (*folders && *folders != ':')
			folders++;
		if (*folders)
			folders++;
	}
	return worst;
}

static void quit(long status)
{
	for (;;)
		call(EXIT_GROUP, status, 0, 0, 0);
}

/* program is what the child does. A process group of its own keeps "kill 0" away from PID 1, which would pass it on. */
static void program(char **arguments, char **environment, unsigned long mask)
{
	long err;

	call(SETPGID, 0, 0, 0, 0);
	call(SIGPROCMASK, SETMASK, (long)&mask, 0, MASK_SIZE);
	err = run(arguments, environment);
	print(cannot_run);
	print(arguments[0]);
	if (err == -ENOENT || err == -ENOTDIR) {
		print(not_found);
		quit(NOT_FOUND);
	}
	print(err == -EACCES ? not_allowed : err == -ENOEXEC ? no_format : failed);
	quit(CANNOT_RUN);
}

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
	if (child == 0)
		program(arguments + 1, environment, mask);
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
