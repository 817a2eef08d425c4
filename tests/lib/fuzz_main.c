/* SPDX-License-Identifier: MIT
 *
 * Runs a fuzz target over every file of the folders named, so that the corpus is a test without libFuzzer.
 */
#include "base/io.h"
#include "lib/fuzz.h"

#include <dirent.h>

int main(int argc, char **argv)
{
    size_t n = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            fprintf(stderr, "cannot open %s\n", argv[i]);
            return 1;
        }
        for (struct dirent *d; (d = readdir(dir));) {
            char path[PATH_MAX];
            struct buf b = {0};
            struct err e;
            if (d->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], d->d_name);
            if (io_read_file(path, 64u << 20, &b, &e) != OK) {
                fprintf(stderr, "%s\n", e.msg);
                return 1;
            }
            LLVMFuzzerTestOneInput(b.data, b.len);
            buf_free(&b);
            n++;
        }
        closedir(dir);
    }
    printf("%zu inputs\n", n);
    return n == 0;
}
