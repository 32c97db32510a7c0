/* job_limits.h: how large a job may be, for every part of the core that keeps one thing for each
 * rank or device. rankfold/records.py reads it, for whoever checks a job before it comes here.
 */
#ifndef RANKFOLD_JOB_LIMITS_H
#define RANKFOLD_JOB_LIMITS_H

#define RANKS_MAX 256u
#define DEVICES_MAX 64u

#endif
