/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the first processes of containers have in common: system calls, and the start of another program. They have no
 * library, no data and no relocations, as package podinit makes executables of the code alone. A file that includes
 * this defines start, which gets the stack as the kernel leaves it: the number of arguments, the arguments, and the
 * environment.
 */
#pragma once

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
enum { ENOENT = 2, EINTR = 4, ENOEXEC = 8, EACCES = 13, ENOTDIR = 20, SIGUSR1 = 10, SIGCHLD = 17, SETMASK = 2,
	WNOHANG = 1, MASK_SIZE = 8 };

enum { PATH_MAX = 4096, STDERR = 2 };

/* Exit statuses of shells. */
enum { CANNOT_RUN = 126, NOT_FOUND = 127, SIGNALLED = 128 };

/* Texts stand in the code, because data would need a relocation. */
#define TEXT(name, text) \
	__asm__(".text\n" #name ": .asciz \"" text "\"\n.balign 8\n"); \
	extern const char name[] __attribute__((visibility("hidden")))

TEXT(cannot_run, "wangell: cannot run ");
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

/* look_up executes a program, which it looks up in PATH as execvp(3) does. It returns only on failure. */
static long look_up(char **arguments, char **environment)
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

__attribute__((noreturn)) static void quit(long status)
{
	for (;;)
		call(EXIT_GROUP, status, 0, 0, 0);
}

/* run executes a program with a signal mask. If that fails, it says why and exits as a shell does. */
__attribute__((noreturn)) static void run(char **arguments, char **environment, unsigned long mask)
{
	long err;

	call(SIGPROCMASK, SETMASK, (long)&mask, 0, MASK_SIZE);
	err = look_up(arguments, environment);
	print(cannot_run);
	print(arguments[0]);
	if (err == -ENOENT || err == -ENOTDIR) {
		print(not_found);
		quit(NOT_FOUND);
	}
	print(err == -EACCES ? not_allowed : err == -ENOEXEC ? no_format : failed);
	quit(CANNOT_RUN);
}
