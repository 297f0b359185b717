"""Exercises and marks. An answer is taken out of its notebook (answers),
put into the package (course) and examined in a process of its own
(examiner); what it does is told by checks, relations and slips. A
student meets it in the terminal, a teacher in the classroom.

In the order of the book: checks (E20), relations (E20), exercises (E20),
slips (E20), course (E21), milestones (E21), terminal (E22), classroom
(E26), answers (E29), examiner (E29).

Exported from the book; edit the chapter, then run `make export`.
"""
