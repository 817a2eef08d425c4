/* SPDX-License-Identifier: MIT */
#include "cli/commands.h"

const struct command commands[] = {
    {"run", "[MODEL | --origin URL] -p TEXT [OPTIONS]",
     "Continue a text, in this process or around a local ring of processes.", cmd_run},
    {"up", "[MODEL | --origin URL] [OPTIONS]", "Start a ring of node processes on this machine and keep it up.",
     cmd_up},
    {"chat", "[URL] [OPTIONS]", "Talk with a model: around a ring, or at any server with an OpenAI-compatible API.",
     cmd_chat},
    {"status", "[URL] [OPTIONS]", "Show what a ring is doing; fail when it is not whole.", cmd_status},
    {"node", "[MODEL | --origin URL] --manifest FILE --key FILE [OPTIONS]", "Serve one stage of a ring.", cmd_node},
    {"plan", "MODEL|URL --stages N | --node KEY@HOST:PORT ... [OPTIONS]",
     "Divide a model into windows; write the ring's manifest.", cmd_plan},
    {"index", "MODEL|URL [OPTIONS]", "Show a model's id and the size of each block; write its index, or check one.",
     cmd_index},
    {"slice", "MODEL --layers A:B -o FILE", "Write the stage file of a window: a GGUF with its tensors alone.",
     cmd_slice},
    {"pull", "URL [URL...] --layers A:B -o FILE", "Fetch the stage file of a window from web servers, verified.",
     cmd_pull},
    {"origin", "DIR [OPTIONS]", "Serve the models of a folder over HTTP: files, indexes, stage files.", cmd_origin},
    {"cache", "ls|rm|gc [ID] [OPTIONS]", "Show which stage files are in the cache; remove some.", cmd_cache},
    {"keygen", "FILE", "Make a node's identity, or show the public key of one.", cmd_keygen},
    {"doctor", "[OPTIONS]", "Say what this machine has and what is missing.", cmd_doctor},
    {0},
};
