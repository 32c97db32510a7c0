/* job_limits.h: the maximum size of a job, for every part of the core that keeps one entry per rank
 * or device. rankfold/records.py reads it for the code that checks a job before it reaches the
 * core.
 */
#ifndef RANKFOLD_JOB_LIMITS_H
#define RANKFOLD_JOB_LIMITS_H

#define RANKS_MAX 256u
#define DEVICES_MAX 64u

#endif
