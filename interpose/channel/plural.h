/* plural.h: how messages say a number of things: printf("%u byte%s", n, plural(n)). */
#ifndef RANKFOLD_PLURAL_H
#define RANKFOLD_PLURAL_H

static inline const char *plural(unsigned long long number) { return number == 1 ? "" : "s"; }

#endif
