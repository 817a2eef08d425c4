/* SPDX-License-Identifier: MIT
 *
 * The subcommands, one file each (cmd_NAME.c); the table is in commands.c.
 */
#ifndef KVASIR_CLI_COMMANDS_H
#define KVASIR_CLI_COMMANDS_H

#include "cli/opt.h"

extern const struct command commands[]; /* ends with a NULL name */

int cmd_run(int argc, char **argv, const struct command *c);
int cmd_up(int argc, char **argv, const struct command *c);
int cmd_node(int argc, char **argv, const struct command *c);
int cmd_plan(int argc, char **argv, const struct command *c);
int cmd_index(int argc, char **argv, const struct command *c);
int cmd_slice(int argc, char **argv, const struct command *c);
int cmd_chat(int argc, char **argv, const struct command *c);
int cmd_status(int argc, char **argv, const struct command *c);
int cmd_origin(int argc, char **argv, const struct command *c);
int cmd_pull(int argc, char **argv, const struct command *c);
int cmd_cache(int argc, char **argv, const struct command *c);
int cmd_keygen(int argc, char **argv, const struct command *c);
int cmd_doctor(int argc, char **argv, const struct command *c);

#endif
