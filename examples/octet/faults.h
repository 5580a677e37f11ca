/* faults.h: the end of a program whose files fail under it. */
#ifndef OCT_FAULTS_H
#define OCT_FAULTS_H

/* From now on a page that cannot be read (its file has become shorter, its disk fails) is one line
 * that names the file, and exit code 1, instead of a signal without a word. cleanup is called
 * first, in a signal handler, on any thread. */
void oct_faults_take(void (*cleanup)(void));

#endif
