/* node.c - a hash table that doubles. */
#include "config.h"

#include "fsmount/node.h"

#include <errno.h>
#include <stdlib.h>

struct nodes {
    uint64_t session, counter;
    struct node **buckets;
    size_t bucket_count, count; /* bucket_count: a power of two */
};

int nodes_open(uint64_t session, struct nodes **out) {
    struct nodes *n = calloc(1, sizeof(*n));
    if (n == NULL)
        return -ENOMEM;
    n->session = session;
    n->bucket_count = 1024;
    n->buckets = calloc(n->bucket_count, sizeof(struct node *));
    if (n->buckets == NULL) {
        free(n);
        return -ENOMEM;
    }
    *out = n;
    return 0;
}

void nodes_close(struct nodes *n, void (*end)(struct node *node)) {
    if (n == NULL)
        return;
    for (size_t i = 0; i < n->bucket_count; i++) {
        while (n->buckets[i] != NULL) {
            struct node *node = n->buckets[i];
            n->buckets[i] = node->next;
            end(node);
            text_put(node->text);
            free(node);
        }
    }
    free(n->buckets);
    free(n);
}

/* The low bits of a volatile id are its counter. */
static struct node **bucket_of(const struct nodes *n, uint64_t id) {
    return &n->buckets[id & (n->bucket_count - 1)];
}

/* Without memory the old table stays: only slower. */
static void nodes_grow(struct nodes *n) {
    struct nodes old = *n;
    struct node **buckets = calloc(old.bucket_count * 2, sizeof(struct node *));
    if (buckets == NULL)
        return;
    n->buckets = buckets;
    n->bucket_count = old.bucket_count * 2;
    for (size_t i = 0; i < old.bucket_count; i++) {
        while (old.buckets[i] != NULL) {
            struct node *node = old.buckets[i], **to = bucket_of(n, node->id);
            old.buckets[i] = node->next;
            node->next = *to;
            *to = node;
        }
    }
    free(old.buckets);
}

struct node *node_new(struct nodes *n, struct key key, uint32_t fixed_index, struct text *text) {
    struct node *node = calloc(1, sizeof(*node));
    if (node == NULL) {
        text_put(text);
        return NULL;
    }
    node->id = key_volatile(n->session, fixed_index, n->counter++);
    node->key = key;
    node->lookups = 1;
    node->text = text;
    node->size_bytes = text != NULL ? text->len_bytes : 0;
    if (n->count++ >= 2 * n->bucket_count)
        nodes_grow(n);
    struct node **at = bucket_of(n, node->id);
    node->next = *at;
    *at = node;
    return node;
}

struct node *nodes_find(const struct nodes *n, uint64_t id) {
    struct node *node = *bucket_of(n, id);
    while (node != NULL && node->id != id)
        node = node->next;
    return node;
}

void node_forget(struct nodes *n, struct node *node, uint64_t count,
                 void (*end)(struct node *node)) {
    node->lookups = node->lookups > count ? node->lookups - count : 0;
    if (node->lookups != 0)
        return;
    struct node **at = bucket_of(n, node->id);
    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    n->count--;
    end(node);
    text_put(node->text);
    free(node);
}
