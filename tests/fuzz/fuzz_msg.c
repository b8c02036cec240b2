/* fuzz_msg.c - libFuzzer: the first two bytes are a type, the rest a payload. What is accepted must
 * give the same bytes when it is encoded again. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "wire/msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    /* Larger than any message. */
    static union {
        uint64_t align;
        uint8_t bytes[4 * MSG_PATH_BYTES];
    } msg;
    if (size < 2)
        return 0;
    uint16_t type = (uint16_t)(data[0] | data[1] << 8);
    data += 2;
    size -= 2;
    if (msg_decode(type, data, size, &msg) != 0)
        return 0;
    struct enc e = {0};
    msg_encode(type, &msg, &e);
    if (e.failed || e.len_bytes != size || memcmp(e.data, data, size) != 0)
        abort();
    enc_free(&e);
    return 0;
}
