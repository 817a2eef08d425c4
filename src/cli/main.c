/* SPDX-License-Identifier: MIT */
#include "base/err.h"
int main(void)
{
    return 0;
}
