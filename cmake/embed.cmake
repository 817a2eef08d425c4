# SPDX-License-Identifier: MIT
# A file as a C array: cmake -DIN=FILE -DNAME=ident -DOUT=FILE.c -P embed.cmake
file(READ ${IN} hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT}.new "#include <stddef.h>
extern const unsigned char ${NAME}[];
extern const size_t ${NAME}_len;
const unsigned char ${NAME}[] = {\n${bytes}0};
const size_t ${NAME}_len = sizeof ${NAME} - 1;
")
file(RENAME ${OUT}.new ${OUT})
