/* broken_client.h: invariants of structures that only their own file knows (broken_client.c). */
#ifndef RANKFOLD_HOSTILE_BROKEN_CLIENT_H
#define RANKFOLD_HOSTILE_BROKEN_CLIENT_H

void broken_arena(void);
void broken_captures(void);
void broken_comms(void);
void broken_heaps(void);
void broken_objects(void);
void broken_pools(void);
void broken_updates(void);

#endif
