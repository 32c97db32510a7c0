/* queue_parts.h: what the files of this folder include; no others do. */
#ifndef RANKFOLD_QUEUE_PARTS_H
#define RANKFOLD_QUEUE_PARTS_H

#include <stdio.h>

#include "barrier/barrier.h"
#include "clock.h"
#include "codes.h"
#include "collective/collective.h"
#include "queue/collective.h"
#include "queue/event.h"
#include "queue/fence.h"
#include "queue/group.h"
#include "queue/item.h"
#include "queue/pump.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "rank/comm.h"
#include "rank/fault.h"
#include "rank/module.h"
#include "rank/rank.h"
#include "rank/ring.h"
#include "rank/table.h"

#endif
