/*
 * SPANK plugin `chroot`: job steps run in the jail.
 *
 *   required chroot.so /mnt/jail
 *
 * slurmstepd gets a mount namespace of its own, whose root is the jail, before it opens the files of a step: its output lies in the
 * jail, too. What the jail needs of the worker is there already (`slurm-jail complement`). The root of the worker is unmounted:
 * a step cannot reach it. Steps of type extern stay outside: they run no program of a user.
 *
 * A pivot, and not chroot(2): in a chroot, no user namespace can be made, which containers in jobs need.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(chroot, 1);

/* Written by `slurm-jail populate`, when all else is there. */
static const char *const sentinel = "etc/soperator-jail-populated";
static const char *const old_sentinel = ".populated";

/* Slurm takes only negative numbers for a failure of a plugin: with an ESPANK_ERROR, the step would run outside of the jail. */
static const int refused = -1;

static int has_file(const char *jail, const char *name)
{
	char path[PATH_MAX];
	struct stat found;
	int length = snprintf(path, sizeof(path), "%s/%s", jail, name);

	return length > 0 && length < PATH_MAX && lstat(path, &found) == 0 && S_ISREG(found.st_mode);
}

/* Whether a step of this id runs a program of a user. */
static int enters_jail(uint32_t step)
{
	return step <= SLURM_MAX_NORMAL_STEP_ID || step == SLURM_BATCH_SCRIPT || step == SLURM_INTERACTIVE_STEP;
}

/* Makes the jail the root of this thread, and of all that it starts. Returns what failed. */
static const char *enter(const char *jail)
{
	/* Other threads of slurmstepd stay outside. */
	if (unshare(CLONE_NEWNS))
		return "unshare";
	/* What is mounted or unmounted here must not be in the worker. */
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))
		return "make the mounts of the step its own";
	/* The new root must be a mount point. */
	if (mount(jail, jail, NULL, MS_BIND | MS_REC, NULL))
		return "bind it";
	if (chdir(jail))
		return "change to it";
	/* Both are the current folder: the old root lies over the new one, until it is unmounted. */
	if (syscall(SYS_pivot_root, ".", "."))
		return "make it the root";
	if (umount2(".", MNT_DETACH))
		return "unmount the old root";
	if (chdir("/"))
		return "change to its root";
	return NULL;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments)
{
	const char *jail, *failed;
	uint32_t step;

	if (spank_context() != S_CTX_REMOTE)
		return ESPANK_SUCCESS;
	if (count != 1 || arguments[0][0] != '/') {
		slurm_error("chroot: plugstack.conf must name the folder of the jail: required chroot.so /mnt/jail");
		return refused;
	}
	jail = arguments[0];
	if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS) {
		slurm_error("chroot: the id of the step is not known");
		return refused;
	}
	if (!enters_jail(step))
		return ESPANK_SUCCESS;
	if (!has_file(jail, sentinel) && !has_file(jail, old_sentinel)) {
		slurm_error("chroot: the jail %s is not populated: the file %s is missing there", jail, sentinel);
		return refused;
	}
	if (!has_file(jail, "proc/self/status")) {
		slurm_error("chroot: the jail %s has no /proc: run `slurm-jail complement` before slurmd", jail);
		return refused;
	}
	failed = enter(jail);
	if (failed) {
		slurm_error("chroot: cannot enter the jail %s (%s): %s", jail, failed, strerror(errno));
		return refused;
	}
	return ESPANK_SUCCESS;
}
