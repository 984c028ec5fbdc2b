/* Loaded in front of librdkafka (LD_PRELOAD): topics of which a test wants three replicas get one, as one broker cannot keep more. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

typedef void *(*new_topic_t)(const char *, int, int, char *, size_t);

void *rd_kafka_NewTopic_new(const char *topic, int partitions, int replicas, char *reason, size_t reason_size)
{
    new_topic_t next = (new_topic_t)dlsym(RTLD_NEXT, "rd_kafka_NewTopic_new");

    return next(topic, partitions, replicas > 1 ? 1 : replicas, reason, reason_size);
}
