/* Calls the kernels with memory out of a file: driver CASES RESULTS.
 *
 * A case is one call. Its segments are pieces of memory as they were in another process; where that process had
 * pointers, relocations say into which segment. Segment 0 holds the call's arguments. The result is every segment
 * again, as the call left it. Numbers are of 64 bits:
 *
 *   function, number of segments, number of relocations, sizes in bytes, (segment, offset, target) of each relocation,
 *   then the segments' bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include "native.c"

enum { PRODUCT, HEAD, LAYERS };

#ifndef _OPENMP
int omp_get_thread_num(void) { return 0; }
int omp_get_num_threads(void) { return 1; }
#endif

static void *allocate(long bytes) {
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!memory) exit(2);
    return memory;
}

static int read_all(FILE *file, void *to, long bytes) { return fread(to, 1, bytes, file) == (size_t)bytes; }

static long *read_numbers(FILE *file, long count) {
    long *numbers = allocate(count * sizeof(long));
    if (!read_all(file, numbers, count * sizeof(long))) exit(3);
    return numbers;
}

static void call(long function, void **a) {
    if (function == LAYERS) run_layers(a[0], allocate(room_floats(a[0]) * sizeof(float)));
    else {
        float *room = allocate(product_floats(a[0], (long)a[3]) * sizeof(float));
        if (function == PRODUCT) product(a[0], a[1], a[2], (long)a[3], room);
        else head(a[0], a[1], a[4], a[2], (long)a[3], (long)a[5], room);
    }
}

int main(int count, char **names) {
    FILE *cases = count == 3 ? fopen(names[1], "rb") : NULL, *results = cases ? fopen(names[2], "wb") : NULL;
    if (!results) return 1;
    long header[3];
    while (read_all(cases, header, sizeof(header))) {
        long num_segments = header[1], num_relocations = header[2];
        long *sizes = read_numbers(cases, num_segments), *relocations = read_numbers(cases, 3 * num_relocations);
        char **segments = allocate(num_segments * sizeof(char *));
        for (long s = 0; s < num_segments; s++) {
            segments[s] = allocate(sizes[s]);
            if (!read_all(cases, segments[s], sizes[s])) return 3;
        }
        for (long *r = relocations; r < relocations + 3 * num_relocations; r += 3)
            memcpy(segments[r[0]] + r[1], &segments[r[2]], sizeof(char *));
        call(header[0], (void **)(void *)segments[0]);
        for (long s = 0; s < num_segments; s++) fwrite(segments[s], 1, sizes[s], results);
    }
    return fclose(results) ? 4 : 0;
}
