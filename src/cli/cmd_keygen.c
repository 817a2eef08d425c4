/* SPDX-License-Identifier: MIT */
#include "cli/commands.h"
#include "crypto/key.h"

#include <stdio.h>

int cmd_keygen(int argc, char **argv, const struct command *c)
{
    bool show = false;
    const struct opt opts[] = {
        {"show", 0, OPT_FLAG, NULL, "do not make a key: print the public key of FILE", &show, 0, 0},
        {0},
    };
    const char *path;
    int rc = opt_parse_one(c, opts, argc, argv, &path, "which file?");
    if (rc >= 0)
        return rc;
    struct key_secret k;
    struct key_public p;
    struct err e;
    char text[KEY_TEXT_SIZE];
    if (show) {
        if (key_load(path, &k, &e) != OK)
            return opt_fail(&e);
    } else {
        key_generate(&k);
        if (key_save(path, &k, &e) != OK) {
            key_wipe(&k);
            return opt_fail(&e);
        }
    }
    key_public_of(&k, &p);
    key_wipe(&k);
    printf("%s\n", key_text(&p, text));
    return EXIT_OK;
}
