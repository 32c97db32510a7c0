/* rank_parts.h: what the files of this folder include; no others do. */
#ifndef RANKFOLD_RANK_PARTS_H
#define RANKFOLD_RANK_PARTS_H

#include <stdio.h>

#include "barrier/barrier.h"
#include "clock.h"
#include "codes.h"
#include "collective/collective.h"
#include "rank/comm.h"
#include "rank/fault.h"
#include "rank/module.h"
#include "rank/rank.h"
#include "rank/ring.h"
#include "rank/table.h"

#endif
